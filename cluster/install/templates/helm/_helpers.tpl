{{/* The pull spec of the controller. */}}
{{- define "nodeside.image" -}}
{{- with $.Values.image -}}
{{ .repository }}{{ with .tag }}:{{ . }}{{ end }}{{ with .digest }}@{{ . }}{{ end }}
{{- end -}}
{{- end -}}
