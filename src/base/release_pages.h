// Gives memory back to the system that stays allocated or mapped.
#pragma once

#include <cstddef>

namespace lapidary {

// Of the whole pages inside. What a private buffer held is lost; pages of a mapped file are read
// from it again when they are touched.
void ReleasePages(const void* data, size_t bytes);

}  // namespace lapidary
