#include "server/http_head.h"

namespace lapidary {
namespace {

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    default:
      return "Internal Server Error";
  }
}

}  // namespace

HttpResponse JsonResponse(const OrderedJson& json) {
  HttpResponse response;
  response.body = DumpJson(json);
  return response;
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response = JsonResponse(error.ToJson());
  response.status = error.status;
  response.error_code = error.code;
  if (error.retry_after_seconds > 0) {
    response.headers.emplace_back("Retry-After", std::to_string(error.retry_after_seconds));
  }
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

std::string WriteHead(const HttpResponse& response, const HttpHeadOptions& options) {
  std::string head =
      fmt::format("HTTP/1.1 {} {}\r\n", response.status, ReasonPhrase(response.status));
  const auto add = [&](std::string_view name, std::string_view value) {
    head.append(name).append(": ").append(value).append("\r\n");
  };
  const bool has_body = response.status != 204 && response.status != 304;
  if (has_body) add("Content-Type", response.content_type);
  if (options.chunked) add("Transfer-Encoding", "chunked");
  if (options.content_length && has_body) {
    add("Content-Length", std::to_string(*options.content_length));
  }
  add("Connection", options.keep_alive ? "keep-alive" : "close");
  if (!options.request_id.empty()) add("X-Request-Id", options.request_id);
  if (!options.allowed_origin.empty()) {
    add("Access-Control-Allow-Origin", options.allowed_origin);
    add("Vary", "Origin");
  }
  for (const auto& [name, value] : response.headers) add(name, value);
  return head + "\r\n";
}

std::string WriteEvent(std::string_view name, std::string_view data) {
  if (name.empty()) return fmt::format("data: {}\n\n", data);
  return fmt::format("event: {}\ndata: {}\n\n", name, data);
}

std::string WriteChunk(std::string_view data) {
  return fmt::format("{:x}\r\n{}\r\n", data.size(), data);
}

}  // namespace lapidary
