// The exceptions of this library. The message is one sentence: what is wrong, where, and what to
// do.
#pragma once

#include <stdexcept>

#include "lapidary/export.h"

namespace lapidary::v0 {

// Everything that is thrown here is one of these.
class LAPIDARY_EXPORT Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  ~Error() override;
};

// Another input is needed: a model, an option or a request that cannot be. The same call fails
// again.
class LAPIDARY_EXPORT InvalidInput : public Error {
 public:
  using Error::Error;
  ~InvalidInput() override;
};

// Too much waits already. The same call may succeed later.
class LAPIDARY_EXPORT Busy : public Error {
 public:
  using Error::Error;
  ~Busy() override;
};

// The device failed. The session is of no use any more; a new one may be.
class LAPIDARY_EXPORT DeviceError : public Error {
 public:
  using Error::Error;
  ~DeviceError() override;
};

}  // namespace lapidary::v0
