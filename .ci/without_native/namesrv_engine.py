"""Stands first on PYTHONPATH in `.ci/run`: programs that import the native engine find that it is not installed."""

raise ModuleNotFoundError("No module named 'namesrv_engine'", name="namesrv_engine")
