{{- define "operator.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "operator.account" -}}
{{ .Values.serviceAccount.name | default (include "operator.name" .) }}
{{- end }}

{{- define "operator.selector" -}}
app.kubernetes.io/name: splitwise-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "operator.labels" -}}
{{ include "operator.selector" . }}
app.kubernetes.io/part-of: splitwise
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "operator.image" -}}
{{ .image.repository }}:{{ .image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "operator.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "operator.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "operator.hookPod" -}}
{{- $root := .root -}}
restartPolicy: Never
serviceAccountName: {{ include "operator.name" $root }}-hook
securityContext:
  {{- include "operator.podSecurity" $root | nindent 2 }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $root.Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with $root.Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: hook
    image: {{ include "operator.image" (dict "image" $root.Values.image "root" $root) }}
    imagePullPolicy: {{ $root.Values.image.pullPolicy }}
    command: [python, -P, -m, controlplane]
    args: {{ .args | toJson }}
    env:
      - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    securityContext:
      {{- include "operator.containerSecurity" $root | nindent 6 }}
    resources:
      requests: {cpu: 50m, memory: 64Mi}
      limits: {memory: 256Mi}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
volumes:
  - {name: tmp, emptyDir: {}}
{{- end }}
