"""Python client: submit jobs to a coordinator, watch them, and download their files.

with Client() as client:
    job = client.submit("job.yaml").job
    for event in client.watch(job):
        print(event.record or event.job)
"""

from marless.app.client.asynchronous import AsyncClient, IfExists
from marless.app.client.blocking import Client
from marless.app.client.jobs import Event, File, Info, Job, JobState, LogLine, Service

__all__ = ["AsyncClient", "Client", "Event", "File", "IfExists", "Info", "Job", "JobState", "LogLine", "Service"]
