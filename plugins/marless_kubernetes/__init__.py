"""The launcher `kubernetes`: each worker runs in a Pod of its own, which an API server of Kubernetes is asked for.

`launcher` asks for Pods and removes them, `tracking` follows what becomes of them, and `pod_states` says it in words.
`manifests` has what Pods are made of, `api_server` calls the API server, `pools` knows whose Pods they are, and
`leftovers` finds those of pools that have ended. `worker` is the program in a Pod: it starts the worker as a process.
"""
