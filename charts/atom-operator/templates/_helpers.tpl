{{- define "atom-operator.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* 54 characters at most: a Service's name has 63, and -webhook and -metrics go behind. A release has
up to 53, so that it stands in it whole. */}}
{{- define "atom-operator.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 54 | trimSuffix "-" -}}
{{- else if contains (include "atom-operator.name" .) .Release.Name -}}
{{- .Release.Name | trunc 54 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "atom-operator.name" .) | trunc 54 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Of objects of the whole cluster: two releases of one name in two namespaces have one each. A dot
is in no name of a namespace or release, so no two make the same. */}}
{{- define "atom-operator.clusterName" -}}
{{- printf "%s.%s" (include "atom-operator.fullname" .) .Release.Namespace -}}
{{- end -}}

{{- define "atom-operator.selectorLabels" -}}
app.kubernetes.io/name: {{ include "atom-operator.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "atom-operator.labels" -}}
{{ include "atom-operator.selectorLabels" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/part-of: atom-platform
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "atom-operator.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "atom-operator.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is required when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "atom-operator.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ default .Chart.AppVersion .Values.image.tag }}
{{- end -}}
{{- end -}}

{{/* The restricted Pod Security Standard, with what the values say over it. OpenShift gives every
namespace user ids of its own, and takes no others. */}}
{{- define "atom-operator.podSecurityContext" -}}
{{- $context := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") }}
{{- if not .Values.openshift }}
{{- $context = merge (dict "runAsUser" 65532 "runAsGroup" 65532) $context }}
{{- end }}
{{- toYaml (mergeOverwrite $context (deepCopy .Values.podSecurityContext)) }}
{{- end -}}

{{- define "atom-operator.securityContext" -}}
{{- $context := dict "allowPrivilegeEscalation" false "readOnlyRootFilesystem" true "capabilities" (dict "drop" (list "ALL")) }}
{{- toYaml (mergeOverwrite $context (deepCopy .Values.securityContext)) }}
{{- end -}}

{{/* The names by which API servers call the webhook. */}}
{{- define "atom-operator.webhookHosts" -}}
{{- $host := printf "%s-webhook.%s.svc" (include "atom-operator.fullname" .) .Release.Namespace -}}
{{ $host }},{{ $host }}.cluster.local
{{- end -}}

{{/* One Lease for whoever reconciles the whole cluster, whatever the release is called: two operators
of the same objects would undo each other's writes for ever. Of single namespaces one per release. */}}
{{- define "atom-operator.leaseNamespace" -}}
{{- if .Values.watchNamespaces -}}
{{- .Release.Namespace -}}
{{- else -}}
{{- .Values.leaderElection.namespace -}}
{{- end -}}
{{- end -}}

{{- define "atom-operator.leaseName" -}}
{{- ternary (include "atom-operator.fullname" .) "atom-operator" (not (empty .Values.watchNamespaces)) -}}
{{- end -}}

{{/* What the operator may do: nothing that it does not do. */}}
{{- define "atom-operator.rules" -}}
# Of its own it writes canaries (spec.canary), which are AtomDeployments too.
- apiGroups: [serving.atom.dev]
  resources: [atomdeployments]
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [serving.atom.dev]
  resources: [atomdeployments/status]
  verbs: [patch]
# Asked for where owner references are checked (OwnerReferencesPermissionEnforcement).
- apiGroups: [serving.atom.dev]
  resources: [atomdeployments/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [deployments, controllerrevisions]
  verbs: [get, list, watch, create, patch, update, delete]
# An annotation of theirs, if the controller of Deployments is stuck (kubernetes#102551).
- apiGroups: [apps]
  resources: [replicasets]
  verbs: [list, patch]
- apiGroups: [""]
  resources: [services, serviceaccounts, configmaps]
  verbs: [get, list, watch, create, patch, update, delete]
# By which servers of one AtomDeployment know each other: made, and never read.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, update, delete]
# Only where a spec asks for them.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [autoscaling]
  resources: [horizontalpodautoscalers]
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [keda.sh]
  resources: [scaledobjects]
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [leaderworkerset.x-k8s.io]
  resources: [leaderworkersets]
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [get, list, watch, create, patch, update, delete]
# By which pods claim their devices (spec.accelerator.claim).
- apiGroups: [resource.k8s.io]
  resources: [resourceclaimtemplates]
  verbs: [get, list, watch, create, patch, update, delete]
# Created is nothing: a dry run asks whether the claim of a pod's successor would be admitted.
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims]
  verbs: [create]
{{- if .Values.endpointPicker.rights }}
# The rights of an endpoint picker, of which none may be given that the operator has not: it reads
# pods, its pool, and what ranks and renames models in front of it.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, update, delete]
- apiGroups: [inference.networking.x-k8s.io, llm-d.ai]
  resources: [inferenceobjectives, inferencemodelrewrites]
  verbs: [get, list, watch]
{{- else }}
# What a picker had while endpointPicker.rights was on.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch]
{{- end }}
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, watch, create, patch, update, delete]
# Whether the Gateway of a route exists, where no controller says anything about it.
- apiGroups: [gateway.networking.k8s.io]
  resources: [gateways]
  verbs: [get]
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors, prometheusrules]
  verbs: [get, list, create, patch, update, delete]
# The download of weights and the look at a model run as Jobs; claims are read for their modes.
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, update, patch, delete]
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get]
# Patched is an annotation: what a pod costs that a scale-down would end. Created is nothing: a dry
# run asks whether a pod's successor would be admitted, before the pod goes.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, patch]
# A pod whose devices are sick is moved by its eviction, which disruption budgets may refuse.
- apiGroups: [""]
  resources: [pods/eviction]
  verbs: [create]
# Why a quota of Kueue's does not admit a pod.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list]
# The same condition flipping again counts up its Event, which is read for that. Of Jobs and groups
# whose pods are refused only Events say why.
- apiGroups: [""]
  resources: [events]
  verbs: [get, list, create, patch]
{{- end -}}

{{/* Of the whole cluster only: free devices for the choice of a rollout, and why a pod waits. */}}
{{- define "atom-operator.clusterRules" -}}
- apiGroups: [""]
  resources: [nodes]
  verbs: [list]
# The devices that claims are given, and which of them others have.
- apiGroups: [resource.k8s.io]
  resources: [resourceslices, resourceclaims, deviceclasses]
  verbs: [list]
# What is laid below specs, and which of it a namespace's label names.
- apiGroups: [serving.atom.dev]
  resources: [atomprofiles]
  verbs: [get, list, watch]
# How many AtomDeployments take each.
- apiGroups: [serving.atom.dev]
  resources: [atomprofiles/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [namespaces]
  verbs: [get, list, watch]
# The nodes to which the volumes of claims can be attached, as of those in one zone.
- apiGroups: [""]
  resources: [persistentvolumes]
  verbs: [get]
# Whether a release for single namespaces reconciles already: two would undo each other's writes.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [list]
{{- end -}}
