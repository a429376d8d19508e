// Cuts a stream of text at the first stop string, without ever releasing part of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace lapidary {

inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopStringBytes = 1024;

// An Aho-Corasick automaton over bytes: linear in the text, whatever the strings. One per request,
// as it holds the state of the stream. Valid UTF-8 is never cut within a character.
//
//   StopStrings stop = StopStrings::Create({"\n\n", "END"}).value();
//   for each piece: send(stop.Push(piece)); if (stop.matched()) break;
//   send(stop.Finish());
//
// Which string: the one whose match is complete first in the text; of those that end at the same
// byte, the longest. The text is cut where that match begins, or behind it with `include_stop`.
// The outcome does not depend on how the text was split into pieces.
class StopStrings {
 public:
  // Matches nothing; everything pushed is released at once.
  StopStrings() = default;

  // An error for an empty string, more than kMaxStopStrings, or one above kMaxStopStringBytes.
  static Result<StopStrings> Create(const std::vector<std::string>& strings,
                                    bool include_stop = false);

  // Takes the next piece and returns the text that is now safe to send: all but the longest tail
  // that may begin a stop string. After a match, always empty.
  std::string Push(std::string_view piece);

  // As Push, of text in which no stop string may end: those that do are text like any other.
  std::string PushUnstopped(std::string_view piece);

  // The stream has ended: returns what was held back.
  std::string Finish();

  bool matched() const { return match_ >= 0; }
  // Index into the strings given to Create, or -1.
  int match_index() const { return match_; }

 private:
  struct Node {
    uint8_t byte = 0;
    int32_t first_child = -1;
    int32_t next_sibling = -1;
    int32_t fail = 0;    // Longest proper suffix of this node that is also a prefix.
    int32_t depth = 0;   // Bytes of the prefix this node stands for.
    int32_t match = -1;  // Longest stop string that ends here, itself or by suffix.
    int32_t owner = 0;   // A string that has this prefix.
  };

  std::string Push(std::string_view piece, bool may_stop);
  int32_t Child(int32_t node, uint8_t byte) const;
  int32_t Insert(int32_t node, uint8_t byte, int32_t owner);
  void LinkSuffixes();
  // The bytes held back in state `node`: the prefix it stands for, so that nothing is copied aside.
  std::string_view HeldText(int32_t node) const;

  std::vector<Node> nodes_;  // nodes_[0] is the root; empty when nothing is matched.
  std::vector<std::string> strings_;
  bool include_stop_ = false;
  int32_t state_ = 0;
  int32_t match_ = -1;
};

}  // namespace lapidary
