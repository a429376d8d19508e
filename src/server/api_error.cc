#include "server/api_error.h"

#include "base/excerpt.h"

namespace lapidary {
namespace {

const char* TypeOf(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 404:
      return "not_found_error";
    case 500:
      return "internal_server_error";
    case 503:
      return "service_unavailable_error";
    default:
      return "invalid_request_error";
  }
}

OrderedJson TextOrNull(const std::string& text) {
  return text.empty() ? OrderedJson(nullptr) : OrderedJson(text);
}

}  // namespace

OrderedJson ApiError::ToJson() const {
  return {{"error",
           {{"message", Excerpt(message, kMaxErrorChars)},
            {"type", TypeOf(status)},
            {"param", TextOrNull(param)},
            {"code", code.empty() ? OrderedJson(status) : OrderedJson(code)}}}};
}

ApiError NotSupportedYet(std::string param) {
  ApiError error = BadRequest(param, "'{}' is not supported yet", param);
  error.code = "not_supported";
  return error;
}

ApiError QueueFull() {
  ApiError error{503, "too many requests are waiting; try again later"};
  error.code = "queue_full";
  error.retry_after_seconds = 1;
  return error;
}

ApiError OutOfMemory() {
  ApiError error{503, "the requests being read hold too much memory; try again later"};
  error.code = "out_of_memory";
  error.retry_after_seconds = 1;
  return error;
}

ApiError MediaQueueFull() {
  ApiError error{503,
                 "too many pixels wait to be decoded (--max-queued-media-pixels of the server); "
                 "try again later"};
  error.code = "media_queue_full";
  error.retry_after_seconds = 1;
  return error;
}

ApiError ShuttingDown() {
  ApiError error{503, "the server is shutting down"};
  error.code = "shutting_down";
  error.retry_after_seconds = 10;
  return error;
}

ApiError EngineFailed() {
  ApiError error{503, "the model has stopped running; the server must be restarted"};
  error.code = "engine_failed";
  error.retry_after_seconds = 30;
  return error;
}

ApiError InternalError() { return {500, "internal error; the server's log has the details"}; }

std::string DumpJson(const OrderedJson& json) {
  return json.dump(-1, ' ', /*ensure_ascii=*/false, OrderedJson::error_handler_t::replace);
}

}  // namespace lapidary
