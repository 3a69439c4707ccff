{{- /* What the Pods of the chart share. Each is called with a dictionary: `root`, and what its comment says. */}}

{{- /* The image `name` of values.yaml. */}}
{{- define "marless.image" -}}
{{- with .root.Values.images.registry }}{{ trimSuffix "/" . }}/{{ end }}
{{- get .root.Values.images .name }}
{{- with .root.Values.images.tag }}:{{ . }}{{ end }}
{{- end }}

{{- /* The settings of a Pod as a whole. */}}
{{- define "marless.pod" -}}
automountServiceAccountToken: {{ .token | default false }}
enableServiceLinks: false
terminationGracePeriodSeconds: 30
securityContext:
  runAsNonRoot: true
  seccompProfile: {type: RuntimeDefault}
  {{- with .root.Values.user }}
  runAsUser: {{ . }}
  runAsGroup: {{ . }}
  fsGroup: {{ . }}
  {{- end }}
{{- with .root.Values.images.pullSecrets }}
imagePullSecrets:
{{- range . }}
- {name: {{ . }}}
{{- end }}
{{- end }}
{{- with .at.nodeSelector }}
nodeSelector: {{ toJson . }}
{{- end }}
{{- with .at.tolerations }}
tolerations: {{ toJson . }}
{{- end }}
{{- with .at.priorityClass }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "marless.contained" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{- /* Image of a container, and how it is pulled. */}}
{{- define "marless.pulled" -}}
image: {{ include "marless.image" . }}
{{- with .root.Values.images.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{- /* Volumes of secrets belong to root. marless reads secrets only from files of its own user, with mode 0600. */}}
{{- define "marless.copying" -}}
- name: credentials
  {{- include "marless.pulled" . | nindent 2 }}
  command: [sh, -c, "umask 077 && cp -rL /secrets/* /run/"]
  volumeMounts:
  - {name: secrets, mountPath: /secrets, readOnly: true}
  - {name: run, mountPath: /run}
  resources: {requests: {cpu: 10m, memory: 32Mi}, limits: {memory: 64Mi}}
  securityContext: {{ include "marless.contained" . }}
{{- end }}

{{- /* Certificate and key of `part`, as sources of its volume of secrets; with `more`, a list of further keys of its Secret. */}}
{{- define "marless.certificate" -}}
{{- $prefix := .root.Values.credentials.prefix }}
{{- $more := .more | default list }}
{{- if .root.Values.credentials.certManager.enabled }}
- secret:
    name: {{ $prefix }}-{{ .part }}-tls
    items: [{key: ca.crt, path: credentials/authority.pem}, {key: tls.crt, path: credentials/certificate.pem}, {key: tls.key, path: credentials/key.pem}]
{{- end }}
{{- if not .root.Values.credentials.certManager.enabled }}
{{- $more = concat (list "authority.pem" "certificate.pem" "key.pem") $more }}
{{- end }}
{{- if $more }}
- secret:
    name: {{ $prefix }}-{{ .part }}
    items:
    {{- range $more }}
    - {key: {{ . }}, path: credentials/{{ . }}}
    {{- end }}
{{- end }}
{{- end }}

{{- define "marless.tokens" -}}
- secret:
    name: {{ .root.Values.credentials.prefix }}-tokens
    items:
    {{- range list "actor" "learner" "service" "client" "operator" }}
    - {key: {{ . }}, path: tokens/{{ . }}}
    {{- end }}
{{- end }}

{{- define "marless.memory" -}}
- {name: run, emptyDir: {medium: Memory, sizeLimit: 16Mi}}
- {name: tmp, emptyDir: {medium: Memory, sizeLimit: 256Mi}}
{{- end }}

{{- /* Ports and probes of a service. The health check has a port without TLS, because nodes have no certificate. */}}
{{- define "marless.served" -}}
envFrom: [{configMapRef: {name: settings}}]
ports:
- {name: grpc, containerPort: 7070}
- {name: health, containerPort: 7071}
{{- if .root.Values.metrics.enabled }}
- {name: metrics, containerPort: 9100}
{{- end }}
startupProbe: {grpc: {port: 7071}, periodSeconds: 2, failureThreshold: 60}
readinessProbe: {grpc: {port: 7071}, periodSeconds: 10, timeoutSeconds: 5}
livenessProbe: {tcpSocket: {port: 7070}, periodSeconds: 10, timeoutSeconds: 5}
securityContext: {{ include "marless.contained" . }}
{{- end }}

{{- /* A claim `name` of `size`. */}}
{{- define "marless.claim" -}}
- metadata: {name: {{ .name }}}
  spec:
    accessModes: [ReadWriteOnce]
    {{- with .root.Values.storage.class }}
    storageClassName: {{ . }}
    {{- end }}
    resources: {requests: {storage: {{ .size }}}}
{{- end }}

{{- /* Variables of a pool: what starts its workers, which are `role`s, and how many; `of` are its values of `launcher`. */}}
{{- define "marless.launching" -}}
{{- if .root.Values.launcher.enabled }}
- name: MARLESS_LAUNCHER
  {{- $worker := printf "%s-%s-worker" .root.Values.credentials.prefix .role }}
  {{- $tls := ternary (printf ",tls_secret=%s-tls" $worker) "" .root.Values.credentials.certManager.enabled }}
  value: {{ printf "kubernetes,credentials=%s%s%s%s" $worker $tls (ternary "," "" (ne .of.options "")) .of.options | quote }}
- {name: MARLESS_{{ upper .role }}_WORKERS, value: {{ .of.workers | quote }}}
- {name: MARLESS_POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
{{- else }}
- {name: MARLESS_LAUNCHER, value: {{ .external | quote }}}
{{- if ne .external "external" }}
- {name: MARLESS_{{ upper .role }}_WORKERS, value: {{ .root.Values.pools.workers | quote }}}
{{- end }}
{{- end }}
{{- end }}
