// The LoRA adapters of a server by name: loaded and given up while others are used.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "adapter/adapter.h"

namespace lapidary {

struct AdapterTableOptions {
  int max_adapters = 64;  // loaded at once
  int max_rank = 64;      // of any of them
};

// Every method may be called from many threads at once.
class AdapterTable : public std::enable_shared_from_this<AdapterTable> {
 public:
  AdapterTable(ModelPlan plan, const AdapterTableOptions& options)
      : plan_(std::move(plan)), options_(options) {}

  struct Entry {
    std::string name;
    std::string path;  // as it was given
    std::shared_ptr<const Adapter> adapter;
    // Requests that name it: so far, waiting for their first token, and beyond it.
    uint64_t num_requests = 0;
    int num_waiting = 0;
    int num_running = 0;
  };

  // Reads the files and logs what is applied. With `replaces`, an adapter of that name gives way
  // once the new one is read; without, it is an error. Requests go on with the one they began with.
  Status Load(const std::string& name, const std::filesystem::path& directory,
              const std::string& shown_path, bool replaces);
  // False: there is none of that name.
  bool Unload(const std::string& name);

  bool Has(const std::string& name) const;
  std::vector<Entry> List() const;  // by name
  const AdapterTableOptions& options() const { return options_; }

  // An adapter in use by a request, until it is destroyed.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept : Use() { Swap(other); }
    Use& operator=(Use&& other) noexcept {
      Swap(other);
      return *this;
    }
    ~Use();

    const std::shared_ptr<const Adapter>& adapter() const { return adapter_; }
    void HasBegun();  // has its first token

   private:
    friend class AdapterTable;
    void Swap(Use& other) noexcept {
      table_.swap(other.table_);
      name_.swap(other.name_);
      adapter_.swap(other.adapter_);
      std::swap(is_running_, other.is_running_);
    }

    std::shared_ptr<AdapterTable> table_;  // null: there is no adapter
    std::string name_;
    std::shared_ptr<const Adapter> adapter_;
    bool is_running_ = false;
  };
  // Without an adapter where there is none of that name. The table belongs to a shared_ptr.
  Use Begin(const std::string& name);

 private:
  const ModelPlan plan_;
  const AdapterTableOptions options_;
  mutable std::mutex mutex_;
  std::map<std::string, Entry, std::less<>> entries_;
};

// Names are those of models in requests: printable, without blanks, at most 256 bytes.
Status CheckAdapterName(const std::string& name);

}  // namespace lapidary
