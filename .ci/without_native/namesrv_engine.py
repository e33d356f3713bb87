"""Stands first on PYTHONPATH in `.ci/run`: for whoever imports the native engine, it is not installed."""

raise ModuleNotFoundError("No module named 'namesrv_engine'", name="namesrv_engine")
