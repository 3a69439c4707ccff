"""The four services of marless, each a process of its own: coordinator, actor_pool, learner_pool, param_store."""
