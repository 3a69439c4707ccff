"""The actor pool service: starts actor workers and runs rollouts on them."""
