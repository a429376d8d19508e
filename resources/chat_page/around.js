// --- around the thread ------------------------------------------------------------------------------

function renderConversations() {
  const wanted = byId('search').value.trim().toLowerCase();
  const holds = (conversation) => !wanted || titleOf(conversation).toLowerCase().includes(wanted) ||
    conversation.messages.some((message) => message.content.toLowerCase().includes(wanted));
  const list = [...conversations.values()].filter(holds).sort((left, right) => right.changed - left.changed);
  byId('conversations').replaceChildren(...list.map((conversation) => {
    const title = titleOf(conversation);
    const open = el('button', {class: 'open' + (runs.has(conversation) ? ' busy' : ''), title,
                               onclick: () => { show(conversation); closeOverlays(); }}, el('span', {}, title));
    if (conversation === current) open.setAttribute('aria-current', 'true');
    return el('li', {class: conversation === current ? 'current' : ''}, open,
              iconButton('trash', 'Delete ' + title, () => deleteConversation(conversation)));
  }));
}

function deleteConversation(conversation) {
  forget(conversation);
  if (conversation === current) show(newConversation());
  renderConversations();
  toast('Conversation deleted', 'Undo', () => { save(conversation); show(conversation); });
}

function show(conversation) {
  current = conversation;
  if (conversations.has(conversation.id)) store.set('current', conversation.id); else store.remove('current');
  writeSettings();
  showCurrent();
}

function showCurrent() {
  byId('title').value = current.title;
  byId('heading').textContent = titleOf(current);
  document.title = current.title ? current.title + ' · Lapidary' : 'Lapidary';
  renderThread();
  showComposer();
  renderConversations();
}

function showComposer() {
  const isRunning = runs.has(current);
  const hadFocus = document.activeElement === byId('stop') || document.activeElement === byId('send');
  byId('send').hidden = isRunning;
  byId('stop').hidden = !isRunning;
  byId('messages').setAttribute('aria-busy', String(isRunning));
  if (hadFocus) byId('prompt').focus();
}

function fitPrompt() {
  const prompt = byId('prompt');
  prompt.style.height = 'auto';
  prompt.style.height = prompt.scrollHeight + 'px';
}

function messageText(message) {
  const calls = (message.tool_calls ?? []).map((call) => `[calls ${call.name} ${call.arguments}]`);
  const media = (message.media ?? []).map(({url, name}) => `[${kindOf(url)} ${name}]`);
  const files = (message.files ?? []).map(({name}) => `[file ${name}]`);
  return [...media, ...files, message.content, ...calls].filter(Boolean).join('\n');
}

function conversationText({settings, messages}) {
  const speaker = (message) => ({user: 'You', assistant: 'Model', tool: 'Result of ' + message.name})[message.role];
  const system = settings.system.trim() ? ['System: ' + settings.system] : [];
  return [...system, ...messages.map((message) => `${speaker(message)}: ${messageText(message)}`)].join('\n\n');
}

function download(name, value) {
  const text = JSON.stringify(value, null, 2);
  const link = el('a', {href: URL.createObjectURL(new Blob([text], {type: 'application/json'})),
                        download: (name.replace(/[^\p{L}\p{N}]+/gu, '-').slice(0, 60) || 'conversation') + '.json'});
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// In OpenAI's shape, without other versions: what a request would carry.
function exportCurrent() {
  const {title, settings} = current;
  download(title, {title, exported: new Date().toISOString(), settings, messages: requestMessages(current)});
}

// As they are kept, with all versions.
function exportAll() {
  const all = [...conversations.values()].sort((left, right) => right.changed - left.changed);
  if (!all.length) return toast('There is no conversation yet.');
  download('conversations ' + new Date().toISOString().slice(0, 10), {exported: new Date().toISOString(), conversations: all});
}

// What exportAll writes: those that are here already stay as they are.
function importAll(list) {
  let added = 0;
  for (const raw of list) {
    const id = /^\w{1,40}$/.test(asText(raw?.id)) ? raw.id : newConversation().id;
    const conversation = conversations.has(id) ? null : readConversation(id, raw);
    if (!conversation?.messages.length) continue;
    const {changed} = conversation;
    conversations.set(id, Object.assign(conversation, {changed: changed || Date.now()}));
    store.set('conversation.' + id, JSON.stringify(conversation));
    ++added;
  }
  renderConversations();
  if (!added) return toast('This file holds no conversation that is not here.');
  toast(`${added} conversation${added === 1 ? '' : 's'} imported`);
}

// A conversation as exportCurrent writes it, any list of messages in OpenAI's shape, or what exportAll writes.
function importFile(text) {
  const raw = parseJson(text);
  if (Array.isArray(raw?.conversations)) return importAll(raw.conversations);
  const list = Array.isArray(raw) ? raw : raw?.messages;
  if (!Array.isArray(list)) return toast('This file holds no conversation.');
  const conversation = newConversation();
  if (isObject(raw.settings)) conversation.settings = readSettings(raw.settings);
  const system = list.find((message) => message?.role === 'system');
  if (system && !conversation.settings.system) conversation.settings.system = asText(system.content);
  conversation.messages = list.map((message) => readMessage({
    ...message, reasoning: message?.reasoning ?? message?.reasoning_content,
    tool_calls: (Array.isArray(message?.tool_calls) ? message.tool_calls : []).map((call) =>
      ({id: call?.id, name: call?.function?.name, arguments: call?.function?.arguments})),
  })).filter(Boolean);
  if (!conversation.messages.length) return toast('This file holds no conversation.');
  conversation.title = asText(raw.title) || makeTitle(conversation.messages[0].content);
  save(conversation);
  show(conversation);
}
