"""Calls any method of a gRPC server by its reflection, from JSON: the part of grpcurl that the documents use.

    reflection_client.py -plaintext [-unix] [-authority NAME] [-H 'name: value'] [-d JSON|@] ADDRESS list [SERVICE]
    reflection_client.py -plaintext [-unix] [-authority NAME] [-H 'name: value'] [-d JSON|@] ADDRESS describe SYMBOL
    reflection_client.py -plaintext [-unix] [-authority NAME] [-H 'name: value'] [-d JSON|@] ADDRESS SERVICE/METHOD

It knows no message of stepbox: what it prints, any client of another language sees.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

PATIENCE_S = 60


class _WithHeaders(grpc.UnaryUnaryClientInterceptor, grpc.StreamStreamClientInterceptor):  # type: ignore[misc]  # without types
    """Adds the headers to the calls of reflection too: without the token it is refused like all others."""

    def __init__(self, headers: list[tuple[str, str]]) -> None:
        self._headers = headers

    def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return continuation(details._replace(metadata=self._headers), requests)

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(details._replace(metadata=self._headers), request)


class Server:
    """A server as its reflection describes it."""

    def __init__(self, target: str, authority: str | None, headers: list[tuple[str, str]]) -> None:
        self._headers = headers
        options = [("grpc.default_authority", authority)] if authority else []
        self._channel = grpc.insecure_channel(target, options)
        self._described = grpc.intercept_channel(self._channel, _WithHeaders(headers))
        self._pool = DescriptorPool(ProtoReflectionDescriptorDatabase(self._described))

    def services(self) -> list[str]:
        """The names of all services."""
        stub = reflection_pb2_grpc.ServerReflectionStub(self._described)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        (reply,) = stub.ServerReflectionInfo(iter([request]), timeout=PATIENCE_S)
        return sorted(service.name for service in reply.list_services_response.service)

    def methods(self, service: str) -> list[MethodDescriptor]:
        """The methods of one service."""
        return list(self._pool.FindServiceByName(service).methods)

    def describe(self, symbol: str) -> Iterator[str]:
        """A service's or a message's declaration, without its comments."""
        try:
            service = self._pool.FindServiceByName(symbol)
        except KeyError:
            message = self._pool.FindMessageTypeByName(symbol)
            yield f"message {message.name} {{"
            for field in message.fields:
                yield f"  {_declaration(field)} = {field.number};"
        else:
            yield f"service {service.name} {{"
            for method in service.methods:
                asks = f"{'stream ' * method.client_streaming}.{method.input_type.full_name}"
                gives = f"{'stream ' * method.server_streaming}.{method.output_type.full_name}"
                yield f"  rpc {method.name} ( {asks} ) returns ( {gives} );"
        yield "}"

    def call(self, name: str, documents: list[Any]) -> Iterator[Message]:
        """Calls `service/method` with the messages, and yields the replies."""
        service, _, method_name = name.partition("/")
        method = next((method for method in self.methods(service) if method.name == method_name), None)
        if method is None:
            raise LookupError(f"{service} has no method {method_name}")
        asked, given = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        requests = [json_format.ParseDict(document, asked()) for document in documents] or [asked()]
        call = self._channel.stream_stream(
            f"/{service}/{method_name}",
            request_serializer=asked.SerializeToString,
            response_deserializer=given.FromString,
        )
        yield from call(iter(requests), metadata=self._headers, timeout=PATIENCE_S)

    def details(self, error: grpc.RpcError) -> Iterator[str]:
        """What an error says beside its text, as JSON; a kind that reflection does not describe is only named."""
        for key, value in error.trailing_metadata() or ():
            if key != "grpc-status-details-bin":
                continue
            status: Any = GetMessageClass(self._pool.FindMessageTypeByName("google.rpc.Status")).FromString(value)
            for packed in status.details:
                try:
                    yield json_format.MessageToJson(packed, descriptor_pool=self._pool)
                except TypeError:
                    yield packed.type_url


def _declaration(field: FieldDescriptor) -> str:
    kind = field.message_type or field.enum_type
    name = f".{kind.full_name}" if kind else str(field.type)
    return f"{'repeated ' * field.is_repeated}{name} {field.name}"


def _documents(text: str) -> list[Any]:
    """All JSON values of a text, one after another."""
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        at += len(text[at:]) - len(text[at:].lstrip())
        value, at = decoder.raw_decode(text, at)
        found.append(value)
    return found


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError("write NAME: VALUE")
    return name.strip().lower(), value.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-plaintext", action="store_true", required=True)
    parser.add_argument("-unix", action="store_true")
    parser.add_argument("-authority")
    parser.add_argument("-H", dest="headers", action="append", type=_header, default=[])
    parser.add_argument("-d", dest="data", default="")
    parser.add_argument("address")
    parser.add_argument("verb")
    parser.add_argument("symbol", nargs="?")
    given = parser.parse_args()

    server = Server(f"unix:{given.address}" if given.unix else given.address, given.authority, given.headers)
    try:
        if given.verb == "list":
            names = (
                [f"{given.symbol}.{method.name}" for method in server.methods(given.symbol)]
                if given.symbol
                else server.services()
            )
            lines: Iterator[str] = iter(names)
        elif given.verb == "describe":
            lines = server.describe(given.symbol)
        else:
            data = sys.stdin.read() if given.data == "@" else given.data
            lines = (json_format.MessageToJson(reply) for reply in server.call(given.verb, _documents(data)))
        for line in lines:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
    except grpc.RpcError as error:
        sys.stderr.write(f"ERROR:\n  Code: {_code(error.code().name)}\n  Message: {error.details()}\n")
        for number, detail in enumerate(server.details(error), start=1):
            if number == 1:
                sys.stderr.write("  Details:\n")
            indented = detail.replace("\n", "\n    \t")
            sys.stderr.write(f"  {number})\t{indented}\n")
        # As grpcurl: 64 and the status' number.
        return 64 + int(error.code().value[0])
    return 0


def _code(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


if __name__ == "__main__":
    sys.exit(main())
