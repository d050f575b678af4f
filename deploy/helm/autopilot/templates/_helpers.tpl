{{- define "autopilot.fullname" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The services by name: their key in values, the port that takes requests, and the settings for it. */}}
{{- define "autopilot.components" -}}
ingress: {key: ingress, port: 8081, prefix: AUTOPILOT_INGRESS, secrets: true}
scheduler: {key: scheduler}
dispatcher: {key: dispatcher}
rules-api: {key: rulesApi, port: 8080, prefix: AUTOPILOT_API, secrets: true}
{{- end -}}

{{- define "autopilot.healthPort" -}}8090{{- end -}}

{{/* Takes `root` and `component`. */}}
{{- define "autopilot.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{- define "autopilot.labels" -}}
{{ include "autopilot.selector" . }}
app.kubernetes.io/part-of: autopilot
app.kubernetes.io/version: {{ .root.Values.image.tag | default .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end -}}

{{/* Takes `root` and `component`, whose image it is. */}}
{{- define "autopilot.image" -}}
{{- $image := .root.Values.image -}}
{{- with $image.registry }}{{ trimSuffix "/" . }}/{{ end -}}
{{ $image.prefix }}{{ .component }}
{{- with get $image.digests .component }}@{{ . }}{{ else }}:{{ $image.tag | default .root.Chart.AppVersion }}{{ end -}}
{{- end -}}

{{- define "autopilot.pullSecrets" -}}
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "autopilot.podSecurity" -}}
automountServiceAccountToken: false
# Without it Services would set variables such as AUTOPILOT_INGRESS_PORT.
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "autopilot.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  privileged: false
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* Whether the migration runs as a hook: a database that the release itself brings is not there before it. */}}
{{- define "autopilot.migrationHook" -}}
{{- if and .Values.migration.hook (not .Values.postgresql.enabled) }}true{{ end -}}
{{- end -}}

{{/* Takes `root` and `weight`. */}}
{{- define "autopilot.hook" -}}
{{- if include "autopilot.migrationHook" .root }}
annotations:
  helm.sh/hook: pre-install,pre-upgrade
  helm.sh/hook-weight: {{ .weight | quote }}
  helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- end }}
{{- end -}}

{{/* A setting as the environment has it: lists with commas, numbers without an exponent. */}}
{{- define "autopilot.setting" -}}
{{- if kindIs "string" . }}{{ . }}{{ else if kindIs "slice" . }}{{ join "," . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end -}}

{{- define "autopilot.ingressUrl" -}}
{{- $route := .Values.services.ingress.route -}}
{{- if .Values.publicIngressUrl -}}
{{ .Values.publicIngressUrl }}
{{- else if $route.enabled -}}
{{ ternary "https" "http" (not (empty $route.tlsSecret)) }}://{{ $route.host }}
{{- end -}}
{{- end -}}
