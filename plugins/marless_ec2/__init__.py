"""The launcher `ec2`: workers run on the instances of an Auto Scaling group, as many as there is work for.

The pool (`launcher`) sets the desired capacity of its group, which has no scaling policy. Each instance runs a host
program (`host`), which dials in to the pool, and starts and ends workers there on order: workers come and go with
rounds, in milliseconds, machines in minutes. `plan` decides what to do, from what the group and the hosts are; `group`
calls AWS, and `sentences` says what went wrong there. `metadata` is what an instance reads about itself. Only pools
call AWS: instances, on which environments of third parties run, need no permission for anything.
"""
