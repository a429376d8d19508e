// Result (base/result.h) with nothing to hand back, and no fmt, which nvcc cannot read.
#pragma once

#include <string>
#include <utility>

#include "base/check.h"

namespace lapidary {

// What the caller can do about an error.
enum class ErrorKind {
  kInvalid,  // ask for something else: the same call fails again
  kBusy,     // wait: the same call may succeed later
  kFault,    // nothing: what was asked for is fine, but could not be computed
};

struct Error {
  std::string message;
  ErrorKind kind = ErrorKind::kInvalid;
};

template <typename T>
class Result;

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}

  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const Error& error() const { return error_; }

 private:
  Error error_;
  bool ok_ = true;
};

using Status = Result<void>;

}  // namespace lapidary

// RETURN_IF_ERROR(DoSomething());
#define RETURN_IF_ERROR(expression)                              \
  do {                                                           \
    if (auto status_ = (expression); !status_.ok()) [[unlikely]] \
      return status_.error();                                    \
  } while (false)

// CHECK_OK(EmbedSupports(hidden, num_rope_tables)): an error that only a bug of ours can cause.
#define CHECK_OK(expression)                        \
  do {                                              \
    const auto& status_ = (expression);             \
    CHECK(status_.ok()) << status_.error().message; \
  } while (false)
