{{/* The pull spec of an image, given as its repository, tag and digest; empty without a repository. */}}
{{- define "nodeside.pullSpec" -}}
{{- if .repository -}}
{{ .repository }}{{ with .tag }}:{{ . }}{{ end }}{{ with .digest }}@{{ . }}{{ end }}
{{- end -}}
{{- end -}}

{{/* Rules of a NetworkPolicy: to the ports of the API server, and of DNS. */}}
{{- define "nodeside.egressToApiServer" -}}
- ports:
    {{- range .Values.networkPolicy.apiServerPorts }}
    - port: {{ . }}
    {{- end }}
- ports:
    {{- range list 53 5353 }}
    - port: {{ . }}
      protocol: UDP
    - port: {{ . }}
      protocol: TCP
    {{- end }}
{{- end -}}

{{/* Labels of all objects of the release, besides those that `install` sets as well. */}}
{{- define "nodeside.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: nodeside
{{- end -}}

{{- define "nodeside.pullSecretNames" -}}
{{- $names := list -}}
{{- range .Values.imagePullSecrets -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- $names | toJson -}}
{{- end -}}
