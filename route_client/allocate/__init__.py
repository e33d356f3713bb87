"""Strategies by which consumers share a topic's queues: RocketMQ's six, with RocketMQ's results.

Pure; consumers import it, and nothing of the client does. Begin reading in ``strategy``.
"""

from route_client.allocate.averages import AllocateAveragely, AllocateAveragelyByCircle
from route_client.allocate.by_config import AllocateByConfig
from route_client.allocate.consistent_hash import AllocateByConsistentHash
from route_client.allocate.machine_room import AllocateByMachineRoom, AllocateByMachineRoomNearby, MachineRoomResolver
from route_client.allocate.strategy import AllocateStrategy

__all__ = [
    "AllocateAveragely",
    "AllocateAveragelyByCircle",
    "AllocateByConfig",
    "AllocateByConsistentHash",
    "AllocateByMachineRoom",
    "AllocateByMachineRoomNearby",
    "AllocateStrategy",
    "MachineRoomResolver",
]
