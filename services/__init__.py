"""The processes of marless: coordinator, actor_pool, learner_pool, param_store."""
