"""The list of name servers, from wherever the operator keeps it: flags, a file, the DNS, an address server.

It knows no name server, only where they are; settings and the controller import it. Begin reading in ``namesrv_list``.
"""

from broker_agent.namesrv_list.names import FILE_PREFIX, MAX_NAME_SERVERS, check_address_server, check_namesrv
from broker_agent.namesrv_list.namesrv_list import NamesrvList, namesrv_list_of

__all__ = ["FILE_PREFIX", "MAX_NAME_SERVERS", "NamesrvList", "check_address_server", "check_namesrv", "namesrv_list_of"]
