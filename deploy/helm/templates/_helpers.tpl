{{- define "namesrv.selector" -}}
app.kubernetes.io/name: namesrv
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "namesrv.commonLabels" -}}
app.kubernetes.io/part-of: namesrv
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "namesrv.labels" -}}
{{ include "namesrv.selector" . }}
{{ include "namesrv.commonLabels" . }}
{{- end }}

{{- define "namesrv.consoleSelector" -}}
app.kubernetes.io/name: namesrv-console
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* What follows the first label of a Service's name. */ -}}
{{- define "namesrv.domain" -}}
{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end }}

{{- /* All name servers at a port, each by its own name: HOST:PORT;HOST:PORT */ -}}
{{- define "namesrv.addresses" -}}
{{- $list := list }}
{{- range until (int .root.Values.replicas) }}
{{- $list = append $list (printf "%s-%d.%s-agents.%s:%d" $.root.Release.Name . $.root.Release.Name (include "namesrv.domain" $.root) $.port) }}
{{- end }}
{{- join ";" $list }}
{{- end }}

{{- /* The name servers' Secret, empty without TLS. */ -}}
{{- define "namesrv.tlsSecret" -}}
{{- with .Values.tls }}
{{- .secretName | default (ternary (printf "%s-tls" $.Release.Name) "" (ne .issuer.name "")) }}
{{- end }}
{{- end }}
