// An error as OpenAI's clients expect it: an HTTP status and {"error": {message, type, param,
// code}}.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "base/json.h"

namespace lapidary {

using OrderedJson = nlohmann::ordered_json;

// Of a message on the wire. What it quotes of a request is shorter still (base/excerpt.h).
inline constexpr size_t kMaxErrorChars = 2000;

struct ApiError {
  int status = 400;
  std::string message;
  std::string param = {};       // the field at fault; empty: null
  std::string code = {};        // empty: the status as a number
  int retry_after_seconds = 0;  // 0: no Retry-After

  OrderedJson ToJson() const;
};

// Nothing when all is well. What every parser and check of a request returns.
using ApiStatus = std::optional<ApiError>;

template <typename... Args>
ApiError BadRequest(std::string param, fmt::format_string<Args...> format, Args&&... args) {
  return {400, fmt::format(format, std::forward<Args>(args)...), std::move(param)};
}
ApiError NotSupportedYet(std::string param);
ApiError QueueFull();
ApiError OutOfMemory();
ApiError MediaQueueFull();
ApiError ShuttingDown();
ApiError EngineFailed();
ApiError InternalError();

// JSON text for the wire; bytes that are not UTF-8 become U+FFFD.
std::string DumpJson(const OrderedJson& json);

}  // namespace lapidary

#define RETURN_IF_API_ERROR(expression)                       \
  do {                                                        \
    if (auto api_status_ = (expression)) return *api_status_; \
  } while (false)
