// Reads an untrusted request body: bounded parsing, then fields with checked types.
//
// The first problem is kept and later reads return fallbacks, so a parser reads as a plain list of
// fields and asks status() once. Every field asked for counts as known; the rest are unknown.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/byte_budget.h"

namespace lapidary {

// Nesting and keys per object are bounded: the parser recurses, and inserting into OrderedJson is
// linear in the keys there are.
inline constexpr int kMaxJsonDepth = 64;
inline constexpr int kMaxJsonKeys = 2048;

// Lists of token ids take most of a body that has them, and as values of a tree would take many
// times as much: those of "prompt", "tokens" and "token_ids" become binary values of four bytes an
// id. Null if `json` is neither such a value nor a list of ids.
std::optional<std::vector<int32_t>> ReadTokenIds(const OrderedJson& json);

// The body must be one JSON object. What its tree will take is added to `memory`, if there is one.
ApiStatus ParseRequestJson(std::string_view body, OrderedJson* json, ByteLease* memory = nullptr);

// The member where it is a string.
std::string StringOr(const OrderedJson& object, const char* name, std::string fallback);

class RequestFields {
 public:
  // `prefix` comes before field names in messages: "stream_options.". `object` must outlive this.
  explicit RequestFields(const OrderedJson& object, std::string prefix = "");

  // nullptr when missing or null.
  const OrderedJson* Find(const std::string& name);

  // Also a float that is whole, which some languages write for every number.
  int64_t Int(const std::string& name, int64_t fallback, int64_t min, int64_t max);
  double Number(const std::string& name, double fallback, double min, double max);
  bool Bool(const std::string& name, bool fallback);
  std::string String(const std::string& name, std::string fallback);
  std::vector<int32_t> Ids(const std::string& name);

  // A field that may only be absent, null or (if given) `harmless`.
  void Refuse(const std::string& name, const OrderedJson& harmless = nullptr);
  // Fields that are accepted and change nothing.
  void Accept(std::initializer_list<const char*> names);

  void Fail(ApiError error);
  const ApiStatus& status() const { return status_; }
  bool IsKnown(const std::string& name) const { return known_.contains(name); }
  // Names as JSON strings, safe for a log line; empty when there are none.
  std::string UnknownFields() const;

 private:
  std::string Name(const std::string& name) const { return prefix_ + name; }

  const OrderedJson& object_;
  const std::string prefix_;
  std::set<std::string> known_;
  ApiStatus status_;
};

}  // namespace lapidary
