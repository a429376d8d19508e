// Gives memory back to the system that stays allocated or mapped.
#pragma once

#include <cstddef>

namespace lapidary {

// Of the whole pages inside. What a private buffer held is lost; pages of a mapped file are read
// from it again when they are touched.
void ReleasePages(const void* data, size_t bytes);

// Bytes that the allocator keeps of what was freed, for later; 0 where it does not say.
size_t FreeHeapBytes();

// What is whole pages of those. Takes some milliseconds for 100 MB, in which other threads may have
// to wait for memory.
void ReleaseFreeHeap();

}  // namespace lapidary
