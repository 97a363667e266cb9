{{/* The pull spec of an image, given as its repository, tag and digest; empty without a repository. */}}
{{- define "nodeside.pullSpec" -}}
{{- if .repository -}}
{{ .repository }}{{ with .tag }}:{{ . }}{{ end }}{{ with .digest }}@{{ . }}{{ end }}
{{- end -}}
{{- end -}}
