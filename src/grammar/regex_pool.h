// Regular languages of bytes, with intersection and complement, matched by derivatives.
//
// An expression is a number; equal expressions (up to simple algebra) are the same number. The
// derivative of an expression by a byte is the expression of what may follow that byte, so an
// expression is also a state of its own automaton, made only as far as it is walked. Counted
// repetitions are not unrolled: x{0,4000} is one node, and each derivative one more.
//
// Not thread-safe. Nothing here recurses deeper than kMaxDepth.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/byte_set.h"
#include "grammar/intern_table.h"
#include "grammar/work.h"

namespace lapidary::grammar {

using RegexId = uint32_t;

class RegexPool {
 public:
  static constexpr RegexId kNothing = 0;   // no text
  static constexpr RegexId kEmpty = 1;     // the empty text
  static constexpr RegexId kAnything = 2;  // every text
  static constexpr uint32_t kUnbounded = ~uint32_t{0};

  static constexpr int kMaxDepth = 400;           // of nested operators
  static constexpr size_t kMaxNodes = 1'000'000;  // some 100 MB
  static constexpr size_t kMaxLiveSteps = 200'000;
  static constexpr size_t kMaxDerivatives = 4'000'000;

  RegexPool();

  RegexId Bytes(const ByteSet& bytes);
  RegexId Byte(uint8_t byte) { return Bytes(ByteSet::Of(byte)); }
  RegexId Literal(std::string_view text);
  RegexId Concat(RegexId first, RegexId second);
  RegexId Concat(std::span<const RegexId> parts);
  RegexId Or(std::span<const RegexId> parts);
  RegexId Or(RegexId a, RegexId b) { return Or(std::array{a, b}); }
  RegexId And(std::span<const RegexId> parts);
  RegexId And(RegexId a, RegexId b) { return And(std::array{a, b}); }
  RegexId Not(RegexId part);
  RegexId Repeat(RegexId part, uint32_t min, uint32_t max);
  RegexId Optional(RegexId part) { return Or(part, kEmpty); }
  // Decimal digits whose value, read behind `remainder`, is a multiple of `divisor`.
  RegexId Multiple(uint32_t divisor, uint32_t remainder = 0);

  // `byte` must be the representative of its class.
  RegexId Derivative(RegexId id, uint8_t byte);
  bool IsNullable(RegexId id) const { return nodes_[id].nullable; }
  // A superset of the bytes by which the derivative is not kNothing.
  const ByteSet& FirstBytes(RegexId id) const { return nodes_[id].first; }
  // Whether the language has any text. Only expressions with And or Not need a search.
  bool IsLive(RegexId id);
  bool Matches(RegexId id, std::string_view text);
  // An expression whose texts have the same beginnings of up to `horizon` bytes, but which does not
  // count what cannot run out in them. States that differ in such counts only become the same.
  RegexId WithoutFarCounts(RegexId id, uint32_t horizon);
  // The most rounds of the repetition that the expression begins with; kUnbounded where there is
  // none, or no such limit.
  uint32_t CountLimit(RegexId id) const;

  // Bytes that no expression made so far tells apart are in one class, named by its least byte.
  uint8_t ClassRepresentative(uint8_t byte) const { return representatives_[byte]; }

  // What is done from now on is on this account, which must outlive its use; null: on none.
  void set_work(Work* work) { work_ = work; }

  // A limit was passed: results since then mean nothing. Names the limit; null when all is well.
  const char* limit_error() const { return limit_error_; }
  // The limit is that of the account: what was asked for can still be found out.
  bool is_out_of_work() const { return limit_error_ == kOutOfWork; }
  void ClearLimitError() { limit_error_ = nullptr; }
  // False: the account is empty, which is a limit passed.
  bool TakeWork(int64_t num_steps) {
    if (work_ != nullptr && !work_->Take(num_steps)) [[unlikely]]
      limit_error_ = kOutOfWork;
    return limit_error_ == nullptr;
  }
  size_t num_nodes() const { return nodes_.size(); }
  size_t num_bytes() const;

 private:
  enum class Kind : uint8_t {
    kNothing,
    kEmpty,
    kBytes,     // first
    kLiteral,   // texts_[a, a + b)
    kConcat,    // a, then b
    kOr,        // operands_[a, a + b), sorted
    kAnd,       // operands_[a, a + b), sorted
    kNot,       // a
    kRepeat,    // a, min to max times
    kMultiple,  // divisor a, remainder b
  };
  static constexpr uint32_t kNoReach = 1u << 20;
  static const char kOutOfWork[];
  enum class Life : uint8_t { kUnknown, kLive, kDead };

  struct Node {
    Kind kind;
    bool nullable = false;
    bool searched = false;  // contains kAnd or kNot: may be empty without being kNothing
    Life life = Life::kUnknown;
    uint16_t depth = 0;
    uint32_t a = 0;
    uint32_t b = 0;
    uint32_t min = 0;
    uint32_t max = 0;
    uint32_t min_length = 0;  // bytes of the shortest text, at least; saturates
    // Whatever was read, this many more bytes can complete it; saturates at kNoReach.
    uint32_t reach = 0;
    ByteSet first = {};
  };

  RegexId Intern(const Node& node);
  RegexId InternOperands(Kind kind, std::span<const RegexId> operands);
  std::span<const RegexId> Operands(const Node& node) const {
    return {operands_.data() + node.a, node.b};
  }
  void Flatten(Kind kind, std::span<const RegexId> parts, std::vector<RegexId>* flat) const;
  RegexId ComputeDerivative(RegexId id, uint8_t byte);
  RegexId ConcatDerivative(RegexId id, uint8_t byte);
  void SplitClasses(const ByteSet& bytes);
  // A text that is likely to be of the language; false when it would be too long.
  bool AppendGuess(RegexId id, std::string* text) const;
  bool IsLiveByGuess(RegexId id);

  std::vector<Node> nodes_;
  std::vector<RegexId> operands_;
  std::string texts_;
  InternTable table_;
  std::unordered_map<uint64_t, RegexId> derivatives_;  // by id * 256 + byte
  std::unordered_map<RegexId, RegexId> without_counts_;
  InternTable literals_;  // whole literals by their text
  std::array<uint8_t, 256> representatives_{};
  const char* limit_error_ = nullptr;
  Work* work_ = nullptr;
};

}  // namespace lapidary::grammar
