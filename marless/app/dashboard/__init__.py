"""The dashboard: pages that show jobs, their decisions, invocations and bills while they run. Needs aiohttp.

One asyncio process serves hand-written static files and a JSON API. It reads from a `JobSource`, which is a coordinator
or a directory of run folders. Start reading at `server.py`.
"""
