// Asks for huge pages behind a large buffer that will be touched at random.
#pragma once

#include <cstddef>

namespace lapidary {

// Best called before the first touch. A hint: nothing happens below a few megabytes or where the
// system has no huge pages.
void AdviseHugePages(void* data, size_t bytes);

}  // namespace lapidary
