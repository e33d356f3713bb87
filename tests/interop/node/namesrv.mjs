// What every client of a name server needs: a connection, and errors by their reason.
import { fileURLToPath } from 'node:url';
import grpc from '@grpc/grpc-js';
import protoLoader from '@grpc/proto-loader';
import protobuf from 'protobufjs';

const PROTOS = fileURLToPath(new URL('../../../protos', import.meta.url));
const ERROR_DOMAIN = 'namesrv.dev';

const definition = protoLoader.loadSync('namesrv_api/v1/route_service.proto', {
  includeDirs: [PROTOS],
  keepCase: true, // field names as in the contract
  longs: String, // a JavaScript number is exact only up to 2^53
  enums: String,
  defaults: true, // zero, empty text and empty lists are there; absent fields with presence stay absent
});
const { RouteService } = grpc.loadPackageDefinition(definition).namesrv_api.v1;

// The parts of google/rpc/status.proto and google/rpc/error_details.proto that carry a reason.
const details = protobuf.parse(
  `
  syntax = "proto3";
  message Any { string type_url = 1; bytes value = 2; }
  message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
  message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
`,
  { keepCase: true },
).root;

export function connect(target, options = {}) {
  return new RouteService(target, grpc.credentials.createInsecure(), {
    'grpc.keepalive_time_ms': 5000,
    'grpc.keepalive_timeout_ms': 5000,
    ...options,
  });
}

// A message as JSON. The loader gives null for a message that is absent; JSON's way is to leave it out.
export function asJson(message) {
  return JSON.stringify(message, (_name, value) => value ?? undefined);
}

// Says which code, which reason of the name server's table, and what a person should read.
export function describe(error) {
  const words = [grpc.status[error.code], reasonOf(error)].filter(Boolean).join(' ');
  return `${words}: ${error.details}`;
}

function reasonOf(error) {
  const [bytes] = error.metadata?.get('grpc-status-details-bin') ?? [];
  if (!bytes) return undefined;
  for (const detail of details.lookupType('Status').decode(bytes).details) {
    if (!detail.type_url.endsWith('/google.rpc.ErrorInfo')) continue;
    const info = details.lookupType('ErrorInfo').decode(detail.value);
    if (info.domain === ERROR_DOMAIN) return info.reason;
  }
  return undefined;
}
