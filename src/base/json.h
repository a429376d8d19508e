// nlohmann's JSON, with trees whose destruction takes no memory. Include this instead of
// <nlohmann/json.hpp>: every translation unit must see the same.
//
// The library's own destructor puts a tree's values on a stack that it allocates, so that deep
// trees do not overflow the thread's, and it is noexcept: where there is no memory for that stack
// the process ends. Here a tree is taken apart in place.
#pragma once

#include <cstddef>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

namespace lapidary::internal {

// The last value in an array or an object; null where there is none.
template <typename Json>
Json* LastChild(Json& json) noexcept {
  if (json.is_array()) {
    auto& values = json.template get_ref<typename Json::array_t&>();
    return values.empty() ? nullptr : &values.back();
  }
  auto& members = json.template get_ref<typename Json::object_t&>();
  return members.empty() ? nullptr : &std::prev(members.end())->second;
}

template <typename Json>
void DropLastChild(Json& json) noexcept {
  if (json.is_array()) return json.template get_ref<typename Json::array_t&>().pop_back();
  auto& members = json.template get_ref<typename Json::object_t&>();
  if constexpr (requires { members.pop_back(); }) {
    members.pop_back();
  } else {
    members.erase(std::prev(members.end()));
  }
}

// Leaves null. The way back from a child to its parents is kept where the child was:
//
//   parent -> its last value: grandparent -> its last value: ... -> null, at the root
template <typename Json>
void TakeApart(Json& root) noexcept {
  if (!root.is_structured() || LastChild(root) == nullptr) return;
  Json current = std::move(root);
  Json parent;
  while (true) {
    Json* const last = LastChild(current);
    if (last == nullptr) {
      if (parent.is_null()) return;
      current = std::move(parent);
      parent = std::move(*LastChild(current));
      DropLastChild(current);
    } else if (last->is_structured() && LastChild(*last) != nullptr) {
      Json child = std::move(*last);
      *last = std::move(parent);
      parent = std::move(current);
      current = std::move(child);
    } else {
      DropLastChild(current);
    }
  }
}

template <typename Json>
void DestroyArray(typename Json::array_t* values) noexcept {
  for (Json& value : *values) TakeApart(value);
  std::destroy_at(values);
  std::allocator<typename Json::array_t>().deallocate(values, 1);
}

template <typename Json>
void DestroyObject(typename Json::object_t* members) noexcept {
  for (auto& [name, value] : *members) TakeApart(value);
  std::destroy_at(members);
  std::allocator<typename Json::object_t>().deallocate(members, 1);
}

template <typename T>
void DestroyLeaf(T* leaf) noexcept {
  std::destroy_at(leaf);
  std::allocator<T>().deallocate(leaf, 1);
}

}  // namespace lapidary::internal

// A pointer is null where making its value failed.
#define LAPIDARY_DESTROY_JSON(Json)                            \
  template <>                                                  \
  inline void Json::json_value::destroy(value_t type) {        \
    if (type == value_t::array && array != nullptr) {          \
      lapidary::internal::DestroyArray<Json>(array);           \
    } else if (type == value_t::object && object != nullptr) { \
      lapidary::internal::DestroyObject<Json>(object);         \
    } else if (type == value_t::string && string != nullptr) { \
      lapidary::internal::DestroyLeaf(string);                 \
    } else if (type == value_t::binary && binary != nullptr) { \
      lapidary::internal::DestroyLeaf(binary);                 \
    }                                                          \
  }
LAPIDARY_DESTROY_JSON(nlohmann::ordered_json)
LAPIDARY_DESTROY_JSON(nlohmann::json)
#undef LAPIDARY_DESTROY_JSON
