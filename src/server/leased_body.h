// A request's body as it arrives. It takes memory of the budget for the bytes that are here, not
// for those that are announced: an announcement costs a client nothing and would shut out others.
#pragma once

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional.hpp>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "base/memory_reserve.h"
#include "server/byte_budget.h"

namespace lapidary {

// A Body as Boost.Beast's parsers want it. Fails with errc::not_enough_memory.
struct LeasedBody {
  struct value_type {
    std::string bytes;
    std::shared_ptr<ByteLease> lease;  // set before reading begins; holds `bytes.capacity()`
    size_t num_refused = 0;            // bytes that the lease was asked for in vain
  };

  class reader {
   public:
    template <bool kIsRequest, typename Fields>
    reader(boost::beast::http::header<kIsRequest, Fields>&, value_type& body) : body_(body) {}

    void init(const boost::optional<uint64_t>& length, boost::beast::error_code& error) {
      error = {};
      if (length) length_ = *length;
    }

    template <typename Buffers>
    size_t put(const Buffers& buffers, boost::beast::error_code& error) {
      error = {};
      const size_t num_bytes = boost::beast::buffer_bytes(buffers);
      if (!MakeRoom(body_.bytes.size() + num_bytes)) {
        error = make_error_code(boost::system::errc::not_enough_memory);
        return 0;
      }
      for (const boost::asio::const_buffer buffer : boost::beast::buffers_range_ref(buffers)) {
        body_.bytes.append(static_cast<const char*>(buffer.data()), buffer.size());
      }
      return num_bytes;
    }

    void finish(boost::beast::error_code& error) { error = {}; }

   private:
    // Doubles, so that bytes move but a few times; never beyond what was announced.
    bool MakeRoom(size_t num_bytes) {
      const size_t capacity = body_.bytes.capacity();
      if (num_bytes <= capacity) return true;
      const size_t wanted =
          std::max(num_bytes, static_cast<size_t>(std::min<uint64_t>(2 * capacity, length_)));
      if (!body_.lease->Grow(wanted - capacity)) {
        body_.num_refused = wanted - capacity;
        return false;
      }
      const TaskScope scope;
      try {
        // A string that is empty takes what it is asked for; one that grows may double.
        std::string larger;
        larger.reserve(wanted);
        larger += body_.bytes;
        body_.bytes = std::move(larger);
      } catch (const std::bad_alloc&) {
        return false;
      }
      return true;
    }

    value_type& body_;
    uint64_t length_ = UINT64_MAX;
  };
};

}  // namespace lapidary
