# Settings of workers.sbatch, read by bash on the nodes; paths are as the nodes see them. Copy this file and edit the copy. No secret belongs here.

# What `python -m` runs marless with.
PYTHON=$HOME/marless/.venv/bin/python
# Of `marless credentials`: only actor-worker/ and learner-worker/ need to be on the nodes, readable by you alone.
CREDENTIALS=$HOME/marless/credentials

ACTOR_POOL=head.example.org:7071
LEARNER_POOL=head.example.org:7072
PARAM_STORE=head.example.org:7070
# Packages whose environments jobs may use.
ENV_MODULES=

# Seconds that a pool may be away, such as while it is restarted, before the tasks of the array end.
GONE_S=120
