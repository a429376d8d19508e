// How much memory this process may use.
#pragma once

#include <cstdint>
#include <filesystem>

namespace lapidary {

// The machine's memory, or less where this process, its control group (v2) or one of the groups
// around that is limited; bytes. `root` is another directory in tests.
int64_t MemoryLimit(const std::filesystem::path& root = "/");

// Where the address space is limited, lets all threads share one heap, so that what one of them
// frees the others may take. Before there are other threads.
void ShareHeapIfLimited();

}  // namespace lapidary
