// CHECK: our own invariants, always on. Never reachable from user input (that is Result's job).
//
//   CHECK(ready) << "submit before prepare";
//   CHECK_EQ(rows, expected_rows);          // prints both values
//   DCHECK(index < count);                  // hot loops; compiled out under NDEBUG
#pragma once

#include <sstream>
#include <string>

namespace lapidary::internal {

// Collects the message and aborts in its destructor.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition);
  [[noreturn]] ~CheckFailure();
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

struct Voidify {
  void operator&(std::ostream&) const {}
};

}  // namespace lapidary::internal

#define CHECK(condition)                          \
  (condition) ? (void)0                           \
              : ::lapidary::internal::Voidify() & \
                    ::lapidary::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#define LAPIDARY_CHECK_OP(a, b, op) CHECK((a)op(b)) << (a) << " vs " << (b) << " "
#define CHECK_EQ(a, b) LAPIDARY_CHECK_OP(a, b, ==)
#define CHECK_NE(a, b) LAPIDARY_CHECK_OP(a, b, !=)
#define CHECK_LT(a, b) LAPIDARY_CHECK_OP(a, b, <)
#define CHECK_LE(a, b) LAPIDARY_CHECK_OP(a, b, <=)
#define CHECK_GT(a, b) LAPIDARY_CHECK_OP(a, b, >)
#define CHECK_GE(a, b) LAPIDARY_CHECK_OP(a, b, >=)

#ifdef NDEBUG
#define DCHECK(condition) CHECK(true || (condition))
#else
#define DCHECK(condition) CHECK(condition)
#endif
