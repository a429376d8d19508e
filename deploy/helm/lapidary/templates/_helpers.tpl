{{- define "lapidary.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "lapidary.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "lapidary.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "lapidary.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* What selects the pods; it can not change in an upgrade. */}}
{{- define "lapidary.selector" -}}
app.kubernetes.io/name: {{ include "lapidary.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "lapidary.labels" -}}
{{ include "lapidary.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "lapidary.image" -}}
{{- $tag := .Values.image.tag | default (printf "%s%s" .Chart.AppVersion (ternary "-cuda" "" .Values.gpu.enabled)) }}
{{- printf "%s:%s" .Values.image.repository $tag }}
{{- end }}

{{- define "lapidary.scheme" -}}
{{- ternary "HTTPS" "HTTP" (ne .Values.tls.secretName "") }}
{{- end }}

{{/* The model's name as a label may hold it: what it is called first, its last part. */}}
{{- define "lapidary.modelLabel" -}}
{{- $name := .Values.model.name | default "pebble-e" }}
{{- if .Values.model.servedNames }}{{ $name = first .Values.model.servedNames }}{{ end }}
{{- regexReplaceAll "[^A-Za-z0-9_.-]" (base $name | replace "*" "any") "-" | trunc 63 | trimAll "-_." }}
{{- end }}

{{/* What the schema can not say. */}}
{{- define "lapidary.check" -}}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
{{- fail "autoscaling.minReplicas is above autoscaling.maxReplicas: lower the one or raise the other" }}
{{- end }}
{{- if and .Values.inferencePool.enabled .Values.apiKey.secretName }}
{{- fail "inferencePool reads /metrics of the pods without a key: leave apiKey.secretName empty and let the gateway ask for keys" }}
{{- end }}
{{- if and .Values.inferencePool.enabled (ne .Values.server.metricsPrefix "vllm") }}
{{- fail "inferencePool looks for metrics of vLLM's names: server.metricsPrefix must be vllm" }}
{{- end }}
{{- if and .Values.inferencePool.enabled .Values.tls.secretName }}
{{- fail "inferencePool speaks plain HTTP with the pods: leave tls.secretName empty and let the gateway have the certificate" }}
{{- end }}
{{- if and .Values.model.readOnly (not .Values.model.volume) }}
{{- fail "model.readOnly needs a model.volume that the model is in already" }}
{{- end }}
{{- if and .Values.model.readOnly .Values.model.name (not (hasPrefix "/" .Values.model.name)) }}
{{- fail "model.readOnly: a model of the Hub is downloaded into /models; name one below /models, or leave model.readOnly false" }}
{{- end }}
{{- end }}
