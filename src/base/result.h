// Errors that come from outside (a request, a checkpoint, a flag, a file) are values.
//
// A function that can fail on bad input returns Result<T> (or Status when there is nothing to hand
// back); library code neither aborts nor prints. The message is one sentence fit for the user: what
// is wrong, where, and what to do. Our own bugs go through CHECK (check.h) instead, and a failing
// device throws a typed exception.
#pragma once

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "base/check.h"
#include "base/status.h"

namespace lapidary {

// MakeError("{}: header length {} exceeds the file", path, length)
template <typename... Args>
[[nodiscard]] Error MakeError(fmt::format_string<Args...> format, Args&&... args) {
  return Error{fmt::format(format, std::forward<Args>(args)...)};
}

// Either a T or an Error. Test ok() before value(); value() of an error is a bug and aborts.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    CHECK(ok()) << error().message;
    return std::get<0>(state_);
  }
  const T& value() const& {
    CHECK(ok()) << error().message;
    return std::get<0>(state_);
  }
  T&& value() && {
    CHECK(ok()) << error().message;
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

}  // namespace lapidary

#define LAPIDARY_CONCAT_INNER(a, b) a##b
#define LAPIDARY_CONCAT(a, b) LAPIDARY_CONCAT_INNER(a, b)

// ASSIGN_OR_RETURN(auto config, ParseConfig(text));
#define ASSIGN_OR_RETURN(declaration, expression) \
  ASSIGN_OR_RETURN_IMPL(LAPIDARY_CONCAT(result_, __LINE__), declaration, expression)
#define ASSIGN_OR_RETURN_IMPL(result, declaration, expression) \
  auto result = (expression);                                  \
  if (!result.ok()) [[unlikely]]                               \
    return result.error();                                     \
  declaration = std::move(result).value()
