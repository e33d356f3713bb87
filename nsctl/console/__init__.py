"""The console: a web page that shows what the name servers hold, and where they differ. It changes nothing.

Starlette and Jinja behind uvicorn, which need the extra ``console``. Begin reading in ``pages`` and ``observer``.
"""
