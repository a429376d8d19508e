#include "server/input_items.h"

#include <algorithm>
#include <charconv>

#include "base/excerpt.h"
#include "server/percents.h"

namespace lapidary {
namespace {

constexpr int kDefaultItems = 20;
constexpr int kMaxItems = 100;

struct Page {
  int limit = kDefaultItems;
  bool is_descending = true;
  std::string after;
};

ApiStatus ReadPage(std::string_view query, Page* page) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view field = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    const size_t middle = std::min(field.find('='), field.size());
    const std::string name = DecodePercents(field.substr(0, middle));
    const std::string value = DecodePercents(field.substr(std::min(middle + 1, field.size())));
    if (name == "limit") {
      const char* const last = value.data() + value.size();
      const auto [stop, error] = std::from_chars(value.data(), last, page->limit);
      if (error != std::errc() || stop != last || page->limit < 1 || page->limit > kMaxItems) {
        return BadRequest("limit", "'limit' must be between 1 and {}, got '{}'", kMaxItems,
                          Excerpt(value));
      }
    } else if (name == "order") {
      if (value != "asc" && value != "desc") {
        return BadRequest("order", "'order' must be asc or desc, got '{}'", Excerpt(value));
      }
      page->is_descending = value == "desc";
    } else if (name == "after") {
      page->after = value;
    }
  }
  return {};
}

}  // namespace

ApiStatus ListInputItems(std::string_view items, std::string_view query, OrderedJson* list) {
  Page page;
  RETURN_IF_API_ERROR(ReadPage(query, &page));
  OrderedJson all = OrderedJson::parse(items);
  if (page.is_descending) std::reverse(all.begin(), all.end());
  auto first = all.begin();
  if (!page.after.empty()) {
    first = std::find_if(all.begin(), all.end(),
                         [&](const OrderedJson& item) { return item["id"] == page.after; });
    if (first == all.end()) {
      return BadRequest("after", "the input has no item '{}'", Excerpt(page.after));
    }
    ++first;
  }
  const auto num_left = all.end() - first;
  const auto end = first + std::min<ptrdiff_t>(num_left, page.limit);
  OrderedJson data(OrderedJson::value_t::array);
  data.insert(data.end(), first, end);
  const auto id_of = [&](size_t index) {
    return data.empty() ? OrderedJson(nullptr) : data[index]["id"];
  };
  const OrderedJson first_id = id_of(0);
  const OrderedJson last_id = id_of(data.size() - 1);
  *list = {{"object", "list"},
           {"data", std::move(data)},
           {"first_id", first_id},
           {"last_id", last_id},
           {"has_more", num_left > page.limit}};
  return {};
}

}  // namespace lapidary
