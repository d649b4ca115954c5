// While training goes on, the page is written again and again: load it anew, unless somebody is at work in it.
if (data.refresh) {
  let last = 0;
  for (const name of ["pointerdown", "pointermove", "keydown", "scroll"]) {
    addEventListener(name, () => (last = Date.now()), { passive: true });
  }
  setInterval(() => {
    const isReading = /(^#|&)(episode|q)=/.test(location.hash) || !getSelection().isCollapsed;
    if (!isReading && Date.now() - last > 3000) location.reload();
  }, data.refresh * 1000);
}
