// --- what the user does -----------------------------------------------------------------------------

on('composer', 'submit', (event) => { event.preventDefault(); send(); });
on('stop', 'click', () => runs.get(current)?.controller.abort());
on('prompt', 'input', fitPrompt);
on('attach', 'click', () => byId('media-file').click());
on('media-file', 'change', ({target}) => { attach([...target.files]); target.value = ''; });
on('prompt', 'paste', (event) => {
  const files = [...event.clipboardData.files];
  if (!files.length) return;
  event.preventDefault();
  attach(files);
});
{
  const main = document.querySelector('main');
  const isOfFiles = (event) => event.dataTransfer.types.includes('Files');
  const mark = (isOver) => document.querySelector('.composer').classList.toggle('dropping', isOver);
  main.addEventListener('dragover', (event) => { if (isOfFiles(event)) { event.preventDefault(); mark(true); } });
  main.addEventListener('dragleave', () => mark(false));
  main.addEventListener('drop', (event) => {
    if (!isOfFiles(event)) return;
    event.preventDefault();
    mark(false);
    attach([...event.dataTransfer.files]);
  });
}
on('prompt', 'keydown', (event) => {
  if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener('keydown', (event) => {
  if (event.key !== 'Escape' || document.querySelector('dialog[open]')) return;
  if (!byId('veil').hidden) closeOverlays();
  else runs.get(current)?.controller.abort();
});
on('thread', 'scroll', () => { byId('latest').hidden = isAtEnd(); });
on('latest', 'click', scrollToEnd);
on('new', 'click', () => { show(newConversation()); closeOverlays(); byId('prompt').focus(); });
on('title', 'change', () => {
  current.title = byId('title').value.trim();
  save(current);
  showCurrent();
});
on('open-sidebar', 'click', () => toggle(byId('sidebar'), byId('open-sidebar')));
on('close-sidebar', 'click', () => toggle(byId('sidebar'), byId('open-sidebar')));
on('open-settings', 'click', () => toggle(byId('settings'), byId('open-settings')));
on('close-settings', 'click', () => toggle(byId('settings'), byId('open-settings')));
on('veil', 'click', closeOverlays);
on('settings', 'input', takeSettings);
on('example-tool', 'click', () => { byId('tools').value = JSON.stringify(EXAMPLE_TOOL, null, 2); takeSettings(); });
on('copy-all', 'click', () => copy(conversationText(current)));
on('export', 'click', exportCurrent);
on('export-all', 'click', exportAll);
on('import', 'click', () => byId('import-file').click());
on('import-file', 'change', async ({target}) => {
  const [file] = target.files;
  target.value = '';
  if (file) importFile(await file.text());
});
on('search', 'input', renderConversations);
on('change-key', 'click', () => openKeyDialog('Leave it empty to forget the key.'));
on('cancel-key', 'click', () => byId('key-dialog').close());
on('key-form', 'submit', async (event) => {
  event.preventDefault();
  apiKey.set(byId('key').value.trim(), byId('keep-key').checked);
  byId('key').value = '';
  byId('key-dialog').close();
  await loadModels();
  if (current.messages.at(-1)?.error === KEY_NEEDED) answerAgain(current.messages.at(-1));
});
on('theme', 'click', () => {
  const theme = THEMES[(THEMES.indexOf(byId('theme').dataset.theme) + 1) % THEMES.length];
  store.set('theme', theme);
  showTheme(theme);
});
for (const [width, id] of [[1150, 'settings'], [760, 'sidebar']]) {
  matchMedia(`(max-width: ${width}px)`).addEventListener('change', ({matches}) => {
    byId(id).hidden = matches || id === 'settings';
    showVeil();
  });
}
addEventListener('pagehide', () => {
  isLeaving = true;
  for (const run of runs.values()) save(run.conversation);
});
addEventListener('pageshow', () => { isLeaving = false; });
addEventListener('storage', (event) => {  // another tab has written
  if (event.key !== null && !event.key.startsWith(PREFIX + 'conversation.')) return;
  loadConversations();
  const changed = conversations.get(current.id);
  if (runs.has(current) || changed === current) return renderConversations();
  if (changed) show(changed);
  else if (current.messages.length) show(newConversation());
  else renderConversations();
});

byId('sidebar').hidden = isNarrow(760);
showTheme(THEMES.includes(store.get('theme')) ? store.get('theme') : 'auto');
loadConversations();
show(conversations.get(store.get('current')) ?? newConversation());
loadModels();
mcpLoading = loadMcp();
