"""Messages of a snapshot as they are read here: their queues left encoded, because there are millions of them."""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor
from namesrv_api.v1 import route_service_pb2

_OWNER, _FIELD = route_service_pb2.TopicQueues.DESCRIPTOR.name, "queue_datas"


def _with_encoded_queues() -> Any:
    """The class of a snapshot's messages in which a topic's queues are bytes: on the wire both are the same."""
    pool = descriptor_pool.DescriptorPool()

    def add(file: FileDescriptor) -> None:
        for dependency in file.dependencies:
            add(dependency)
        proto = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(proto)
        for message in proto.message_type:
            for field in message.field:
                if (message.name, field.name) == (_OWNER, _FIELD):
                    field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
                    field.ClearField("type_name")
        pool.Add(proto)

    add(route_service_pb2.DESCRIPTOR)
    name = route_service_pb2.StreamRouteSnapshotResponse.DESCRIPTOR.full_name
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


SnapshotResponse: type[route_service_pb2.StreamRouteSnapshotResponse] = _with_encoded_queues()
"""A message of a snapshot. Its ``queue_datas`` are bytes, for whoever makes rows; all else is as in the contract."""
