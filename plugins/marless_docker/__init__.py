"""The launcher `docker`: each worker runs in a container of its own, which a Docker-compatible engine starts.

`launcher` starts and ends containers, `containers` says what they are made of and which pool they belong to, `engine`
calls the engine, and `leftovers` finds the containers of pools that have ended.
"""
