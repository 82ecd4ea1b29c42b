// A name is what a resolver or ssh may take: letters, digits, dots, dashes, underscores, and the
// colons and percent signs of IPv6.
#include "launcher/hosts.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include <fmt/format.h>

namespace hora {
namespace {

constexpr std::string_view kBlanks = " \t\r";

bool is_name(std::string_view text) {
  return !text.empty() && text.front() != '-' && std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._-:%").find(c) != std::string_view::npos;
  });
}

std::optional<int> slots_of(std::string_view digits) {
  int slots = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), slots);
  if (error != std::errc{} || end != digits.data() + digits.size() || slots < 1) return {};
  return slots;
}

// "name:N", "[address]:N".
std::optional<Host> parse_host(std::string_view entry) {
  const std::size_t colon = entry.rfind(':');
  if (colon == std::string_view::npos) return std::nullopt;
  std::string_view name = entry.substr(0, colon);
  if (name.size() > 2 && name.front() == '[' && name.back() == ']') {
    name = name.substr(1, name.size() - 2);
  }
  const auto slots = slots_of(entry.substr(colon + 1));
  if (!slots || !is_name(name)) return std::nullopt;
  return Host{std::string(name), *slots};
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = text.find_first_not_of(kBlanks);
    if (begin == std::string_view::npos) return words;
    text.remove_prefix(begin);
    const std::size_t end = std::min(text.find_first_of(kBlanks), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

// "name slots=N", "name:N".
std::optional<Host> parse_line(std::string_view line) {
  constexpr std::string_view kSlots = "slots=";
  const std::vector<std::string_view> words = words_of(line);
  if (words.size() == 1) return parse_host(words[0]);
  if (words.size() != 2 || !words[1].starts_with(kSlots) || !is_name(words[0])) return {};
  const auto slots = slots_of(words[1].substr(kSlots.size()));
  if (!slots) return std::nullopt;
  return Host{std::string(words[0]), *slots};
}

Result<void> add(std::vector<Host>& hosts, Host host, std::string_view where) {
  for (const Host& earlier : hosts) {
    if (earlier.name != host.name) continue;
    return fail(ErrorKind::invalid_argument,
                fmt::format("{}: '{}' is named twice; add its slots up", where, host.name));
  }
  hosts.push_back(std::move(host));
  return {};
}

}  // namespace

Result<std::vector<Host>> parse_hosts(std::string_view text) {
  std::vector<Host> hosts;
  while (true) {
    const std::size_t comma = text.find(',');
    std::optional<Host> host = parse_host(text.substr(0, comma));
    if (!host) {
      return fail(ErrorKind::invalid_argument,
                  fmt::format("Invalid host input, please make sure it has format as : "
                              "worker-0:2,worker-1:2. ('{}' is not HOST:SLOTS with at least one "
                              "slot)",
                              text.substr(0, comma)));
    }
    HORA_TRY(add(hosts, std::move(*host), "--hosts"));
    if (comma == std::string_view::npos) return hosts;
    text.remove_prefix(comma + 1);
  }
}

Result<std::vector<Host>> parse_hostfile(std::string_view text, std::string_view name) {
  std::vector<Host> hosts;
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(kBlanks) == std::string_view::npos) continue;
    std::optional<Host> host = parse_line(line);
    const std::string where = fmt::format("{}:{}", name, number);
    if (!host) {
      return fail(ErrorKind::invalid_argument,
                  fmt::format("{}: '{}' is neither 'HOST slots=N' nor 'HOST:N' with at least one "
                              "slot",
                              where, fmt::join(words_of(line), " ")));
    }
    HORA_TRY(add(hosts, std::move(*host), where));
  }
  if (hosts.empty()) return fail(ErrorKind::invalid_argument, fmt::format("{}: no hosts", name));
  return hosts;
}

}  // namespace hora
