#include "base/memory_reserve.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <vector>

namespace lapidary {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

// In a process of its own that has no memory left but its reserve. The action says whether all was
// as it should be.
void ExpectWithoutMemory(const std::function<bool()>& action) {
  if (kIsSanitized) GTEST_SKIP() << "a sanitizer needs more address space than a limit leaves";
  const pid_t child = fork();
  if (child == 0) {
    if (!MemoryReserve::Fill()) _exit(2);
    long num_pages = 0;
    std::ifstream("/proc/self/statm") >> num_pages;
    const rlim_t now = static_cast<rlim_t>(num_pages * sysconf(_SC_PAGESIZE));
    const rlimit no_more{now, now};
    setrlimit(RLIMIT_AS, &no_more);
    // What the allocator still has.
    for (size_t num_bytes = size_t{1} << 20; num_bytes >= 16; num_bytes /= 2) {
      void* volatile taken = std::malloc(num_bytes);  // Or the compiler leaves it out.
      while (taken != nullptr) taken = std::malloc(num_bytes);
    }
    _exit(action() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

bool CanAllocate(size_t num_bytes) {
  try {
    const std::vector<char> bytes(num_bytes);
    return bytes.size() == num_bytes;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

TEST(MemoryReserveTest, OnlyAScopeTakesFromIt) {
  ExpectWithoutMemory([] {
    if (CanAllocate(10'000)) return false;
    const ReserveScope scope;
    {
      const TaskScope task;
      if (CanAllocate(10'000)) return false;
    }
    return CanAllocate(10'000);
  });
}

TEST(MemoryReserveTest, DestructorsTakeFromItWhenAnExceptionPasses) {
  ExpectWithoutMemory([] {
    struct Allocates {
      ~Allocates() { *has_allocated = CanAllocate(10'000); }
      bool* has_allocated;
    };
    bool has_allocated = false;
    try {
      const Allocates allocates{&has_allocated};
      std::vector<char>(size_t{1} << 30);
    } catch (const std::bad_alloc&) {
      return has_allocated;
    }
    return false;
  });
}

TEST(MemoryReserveTest, WhatIsGivenBackFillsItAgain) {
  ExpectWithoutMemory([] {
    std::vector<std::unique_ptr<char[]>> blocks;
    {
      const ReserveScope scope;
      blocks.reserve(100);
      while (blocks.size() < 100) blocks.push_back(std::make_unique<char[]>(10'000));
    }
    if (MemoryReserve::Fill()) return false;
    blocks.clear();
    blocks.shrink_to_fit();
    // All but what the allocator keeps of its pieces: enough for the next time.
    static_cast<void>(MemoryReserve::Fill());
    const ReserveScope scope;
    while (blocks.size() < 100) blocks.push_back(std::make_unique<char[]>(10'000));
    return true;
  });
}

TEST(MemoryReserveTest, WhatIsInsistedOnHappensWhenOthersGiveBack) {
  int num_tries = 0;
  Insist([&] {
    if (++num_tries < 3) throw std::bad_alloc();
  });
  EXPECT_EQ(num_tries, 3);
}

}  // namespace
}  // namespace lapidary
