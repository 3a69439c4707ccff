"""The launcher `ray`: each worker runs in an actor of a Ray cluster, which places it and scales its nodes.

Four processes take part. The pool (`launcher`) never imports Ray: it would start threads there, block its event loop,
and end it together with the cluster. It starts one `driver`, which it tells what to do on standard input, as lines of
JSON. The driver has Ray start actors (`host`) on nodes. An actor starts its worker as a process (`worker`), which dials
in to the pool by gRPC, as all workers do, and knows nothing of Ray.

They end in the same order. A driver ends when its pool closes its standard input. Ray ends the actors of a driver that
is gone: none is detached. The kernel ends a worker whose actor is gone.
"""
