#include "lapidary/error.h"

namespace lapidary::v0 {

// Out of line, so that whoever catches them finds one type.
Error::~Error() = default;
InvalidInput::~InvalidInput() = default;
Busy::~Busy() = default;
DeviceError::~DeviceError() = default;

}  // namespace lapidary::v0
