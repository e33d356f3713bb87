"""The route log: a Delta table to which each batch of rows is one commit.

Begin reading in ``route_log``, which has :meth:`~route_pipeline.log.route_log.RouteLog.append`.
"""
