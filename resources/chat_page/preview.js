// --- HTML in a frame of its own -------------------------------------------------------------------------

// The frame holds this server's /preview, whose own Content-Security-Policy gives it an opaque origin and lets it load
// nothing. It shows the HTML that it is sent, which never becomes part of this page.
const PREVIEWED = new Set(['html', 'svg']);

function openPreview(code) {
  const frame = el('iframe', {sandbox: 'allow-scripts', src: 'preview', title: 'What the code shows'});
  frame.addEventListener('load', () => frame.contentWindow.postMessage(code, '*'), {once: true});
  byId('preview-frame').replaceChildren(frame);
  byId('preview-dialog').showModal();
}

on('close-preview', 'click', () => byId('preview-dialog').close());
on('preview-dialog', 'close', () => byId('preview-frame').replaceChildren());
