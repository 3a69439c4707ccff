"""MinionsRL: a small policy, trained before the job, chooses how many actors a round gets.

`kind` is the scaling policy `minions`; reading its settings does not import NumPy. `commands` has `marless scheduler`,
which trains such a policy.
"""
