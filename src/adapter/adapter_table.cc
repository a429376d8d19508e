#include "adapter/adapter_table.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/json_fields.h"

namespace lapidary {
namespace {

constexpr size_t kMaxNameBytes = 256;

}  // namespace

Status CheckAdapterName(const std::string& name) {
  const bool is_printable = std::ranges::all_of(
      name, [](char c) { return static_cast<unsigned char>(c) > ' ' && c != 0x7f && c != '"'; });
  if (!name.empty() && name.size() <= kMaxNameBytes && is_printable) return {};
  return MakeError("the adapter's name '{}' must be 1 to {} characters without blanks or quotes",
                   ShortUtf8(name, 60), kMaxNameBytes);
}

Status AdapterTable::Load(const std::string& name, const std::filesystem::path& directory,
                          const std::string& shown_path, bool replaces) {
  RETURN_IF_ERROR(CheckAdapterName(name));
  const auto check = [&]() -> Status {
    const bool is_known = entries_.contains(name);
    if (is_known && !replaces) return MakeError("the adapter '{}' is loaded already", name);
    if (!is_known && std::ssize(entries_) >= options_.max_adapters) {
      return MakeError(
          "{} adapters are loaded, as many as --max-cpu-loras allows; unload one first",
          entries_.size());
    }
    return {};
  };
  {
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(check());
  }
  ASSIGN_OR_RETURN(std::shared_ptr<const Adapter> adapter,
                   Adapter::Load(directory, plan_, {.max_rank = options_.max_rank}));
  const std::string summary = adapter->Summary();
  {
    const std::lock_guard lock(mutex_);
    RETURN_IF_ERROR(check());
    Entry& entry = entries_[name];
    entry.name = name;
    entry.path = shown_path;
    entry.adapter.swap(adapter);
    // Those of the one before count no more.
    entry.num_waiting = entry.num_running = 0;
  }
  spdlog::info("LoRA adapter '{}' of {}: applied {}", name, shown_path, summary);
  return {};
}

bool AdapterTable::Unload(const std::string& name) {
  std::shared_ptr<const Adapter> last;  // Freed without the lock.
  {
    const std::lock_guard lock(mutex_);
    const auto entry = entries_.find(name);
    if (entry == entries_.end()) return false;
    last = std::move(entry->second.adapter);
    entries_.erase(entry);
  }
  spdlog::info("LoRA adapter '{}' is unloaded", name);
  return true;
}

bool AdapterTable::Has(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  return entries_.contains(name);
}

std::vector<AdapterTable::Entry> AdapterTable::List() const {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> list;
  for (const auto& [name, entry] : entries_) list.push_back(entry);
  return list;
}

AdapterTable::Use AdapterTable::Begin(const std::string& name) {
  Use use;
  use.name_ = name;
  const std::lock_guard lock(mutex_);
  const auto entry = entries_.find(name);
  if (entry == entries_.end()) return use;
  ++entry->second.num_requests;
  ++entry->second.num_waiting;
  use.table_ = shared_from_this();
  use.adapter_ = entry->second.adapter;
  return use;
}

void AdapterTable::Use::HasBegun() {
  if (table_ == nullptr || is_running_) return;
  is_running_ = true;
  const std::lock_guard lock(table_->mutex_);
  const auto entry = table_->entries_.find(name_);
  // One that was loaded anew under the name is another one.
  if (entry == table_->entries_.end() || entry->second.adapter != adapter_) return;
  --entry->second.num_waiting;
  ++entry->second.num_running;
}

AdapterTable::Use::~Use() {
  if (table_ == nullptr) return;
  const std::lock_guard lock(table_->mutex_);
  const auto entry = table_->entries_.find(name_);
  if (entry == table_->entries_.end() || entry->second.adapter != adapter_) return;
  --(is_running_ ? entry->second.num_running : entry->second.num_waiting);
}

}  // namespace lapidary
